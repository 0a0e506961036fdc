/* The status with which a process ends, told to whoever listens at a socket. */
#ifndef ULLAGE_EXIT_STATUS_H
#define ULLAGE_EXIT_STATUS_H

#include <stdbool.h>

#define ULLAGE_API __attribute__((visibility("default")))

/* Have this process write {"event": "exit", "status": N} to a socket as the last thing that it does; once in a process.
 * One that a signal ends, or _exit, writes nothing. */
ULLAGE_API bool exit_status_tell(int descriptor);

#endif
