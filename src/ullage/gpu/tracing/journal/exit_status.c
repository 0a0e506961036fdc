/* The status with which a process ends, told to whoever listens at a socket.
 *
 * It is known only when the interpreter is gone: `raise SystemExit(3)` and an error that nobody has handled leave
 * nothing behind that an exit handler of Python's could read.
 */
#define _GNU_SOURCE
#include "exit_status.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static struct {
  int descriptor;
  pid_t process;
  dev_t device;
  ino_t file;
} listener;

static void tell(int status, void *unused) {
  (void)unused;
  struct stat found;
  /* A process that was forked has the handler, too; a script may have closed the descriptor and opened another. */
  if (getpid() != listener.process || fstat(listener.descriptor, &found) != 0 || found.st_dev != listener.device ||
      found.st_ino != listener.file)
    return;
  char message[64];
  int length = snprintf(message, sizeof message, "{\"event\": \"exit\", \"status\": %d}\n", status & 0xff);
  if (send(listener.descriptor, message, (size_t)length, MSG_NOSIGNAL) < 0) return; /* nobody listens any more */
}

bool exit_status_tell(int descriptor) {
  struct stat found;
  if (fstat(descriptor, &found) != 0) return false;
  listener.descriptor = descriptor;
  listener.process = getpid();
  listener.device = found.st_dev;
  listener.file = found.st_ino;
  return on_exit(tell, NULL) == 0;
}
