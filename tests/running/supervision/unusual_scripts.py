"""Scripts that do unusual things with processes, files, environment and the interpreter, as a table.

None prints what differs from one run to the next (process numbers, times, addresses). In a shell line `{}` stands for
`python` or `ullage run`, `{any}` for nothing or `ullage run`, `{plain}` for `python`; the folder is the script's alone.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from textwrap import dedent


@dataclass(frozen=True, slots=True, kw_only=True)
class Unusual:
    """A script, and how it is started."""

    code: str = ""
    """The content of script.py."""
    shell: str = "{} script.py"
    """A line for bash."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Other files beside it."""
    environment: Mapping[str, str] = field(default_factory=dict)
    needs_torch: bool = False
    """Whether it uses torch, on an emulated card."""
    is_slow: bool = False
    """Whether it is left to a run with ULLAGE_SLOW=1, as those with torch are: it takes seconds."""
    needs: str = ""
    """A line for bash that succeeds where the script can be run at all."""


_ABOUT_ITSELF = dedent("""
    import os, sys, signal, resource, gc, threading, warnings, ctypes
    def name_of(fd):
        try: return os.readlink(f"/proc/self/fd/{fd}").split(":")[0]
        except OSError: return "that of the listing"
    print({fd: name_of(fd) for fd in os.listdir("/proc/self/fd")})
    print([line for line in open("/proc/self/status") if line.startswith(("SigB", "SigI", "SigC", "SigP", "Threads"))])
    print([resource.getrlimit(getattr(resource, name)) for name in sorted(dir(resource)) if name.startswith("RLIMIT")])
    print(os.umask(0o22), os.nice(0), os.getcwd(), sorted(os.sched_getaffinity(0)), os.sched_getscheduler(0))
    print(os.getpgrp() == os.getpid(), os.getsid(0) == os.getpid(), [signal.getitimer(which) for which in range(3)])
    print(os.getuid(), os.geteuid(), os.getgroups(), signal.pthread_sigmask(signal.SIG_BLOCK, []))
    number = ctypes.c_int(-1)
    ctypes.CDLL(None).prctl(2, ctypes.byref(number)); print(number, ctypes.CDLL(None).prctl(3))
    print(sys.flags, sys.argv, sys.orig_argv[1:], sys.executable, sys.warnoptions, sys._xoptions, warnings.filters)
    print([path for path in sys.path if "/_child/" not in path], __name__, __file__, __spec__, sys.prefix)
    print(gc.get_threshold(), gc.isenabled(), threading.enumerate(), sys.getrecursionlimit(), sys.getswitchinterval())
    print(sys.gettrace(), sys.getprofile(), sys.excepthook, sys.path_hooks, sys.stdout, sys.stderr, sys.stdin)
""")
_MODULES = dedent("""
    import sys
    print(sorted(sys.modules))
    for module in ("sitecustomize", "usercustomize", "begin", "hooks", "ullage_child"):
        try: print(__import__(module))
        except ImportError as error: print(repr(error))
""")
_ENDS_BY_SIGNAL = dedent("""
    import os, resource, signal, sys
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print('flushed', flush=True)
    number = int(sys.argv[1])
    if number not in (9, 19): signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    print('went on')
""")
_WITH_TORCH = dedent("""
    import threading, torch
    model = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        model(torch.zeros(2, 8, device="cuda")).sum().backward(); optimizer.step()
        optimizer.zero_grad()
""")

TABLE: Mapping[str, Unusual] = {
    # ---- what it finds itself in
    "itself": Unusual(
        code=_ABOUT_ITSELF,
        shell=r"""
            {} script.py --one '' 'two words' $'\xff' -- -x
        """,
    ),
    "itself, as a module": Unusual(
        code=_ABOUT_ITSELF,
        shell="{} -m script a",
        is_slow=True,
    ),
    "itself, with options": Unusual(
        code=_ABOUT_ITSELF,
        shell="{any} python -O -u -B -X utf8 -W error::UserWarning script.py",
    ),
    "itself, isolated": Unusual(
        code=_ABOUT_ITSELF,
        shell="{any} python -I script.py; {any} python -E script.py; {any} python -s -P script.py",
    ),
    "itself, without site": Unusual(
        code=_ABOUT_ITSELF,
        shell="{any} python -S script.py",
        is_slow=True,
    ),
    "itself, development mode": Unusual(
        code=_ABOUT_ITSELF + "open('kept'); 1 is 1",
        shell="{any} python -X dev script.py",
        is_slow=True,
    ),
    "itself, by a shell": Unusual(
        shell="""
            ulimit -c 0; ulimit -n 77; umask 027
            nice -n 5 {any} bash -c 'ls /proc/self/fd; grep Sig[BICP] /proc/self/status; ulimit -a; umask; nice
            env | grep -vE "^(ULL|PYTHONPATH|_=|SHLVL)" | sort'
        """,
        environment={"PYTHONPATH": ""},
    ),
    "code of the command line": Unusual(
        shell="""
            {any} python -c 'import sys; print(sys.argv, sys.path[0] == "")' a -c
        """,
        is_slow=True,
    ),
    "code of standard input": Unusual(
        shell="echo 'import sys; print(sys.argv, __name__)' | {any} python - a b",
        is_slow=True,
    ),
    "a session at standard input": Unusual(
        shell=r"""
            printf 'x = 2\nx * 21\nexit(x)\n' | {any} python -i -q
        """,
        is_slow=True,
    ),
    "modules": Unusual(
        code=_MODULES,
    ),
    "modules of a child": Unusual(
        code="""
            import subprocess, sys
            subprocess.run([sys.executable, "modules.py"])
            for option in ("-S", "-I", "-E", "-O"):
                subprocess.run([sys.executable, option, "-c", "import sys; print(sys.flags, len(sys.modules))"])
        """,
        files={"modules.py": _MODULES},
    ),
    "environment": Unusual(
        code="""
            import os
            hidden = ("ULLAGE_RECORDING", "PYTHONPATH", "_", "SHLVL")
            print(sorted((name, value) for name, value in os.environ.items() if name not in hidden))
            print([path for path in os.environ.get("PYTHONPATH", "").split(":") if "/_child/" not in path])
        """,
        environment={"ODD": "a=b\n\udcff", "EMPTY": "", "PYTHONPATH": "/nowhere::/b"},
    ),
    "environment, cleared": Unusual(
        code="""
            import os, subprocess, sys
            os.environ.clear()
            subprocess.run([sys.executable, '-c', 'import os; print(sorted(os.environ))'])
            subprocess.run(['/usr/bin/env'], env={'A': '1'})
        """,
        is_slow=True,
    ),
    "environment without a language": Unusual(
        shell="""
            unset LANG LC_ALL LC_CTYPE
            {any} bash -c 'echo $LC_CTYPE'
            {any} python -c 'import locale, os, sys; print(os.environ.get("LC_CTYPE"), sys.stdout.encoding)
            print(sys.stdout.errors, locale.getlocale())'
        """,
    ),
    "other languages": Unusual(
        code=r"""
            import locale, sys; print(sys.stdout.encoding, sys.stdout.errors, locale.getpreferredencoding())
            print('\u00e9')
        """,
        shell="""
            LC_ALL=C {} script.py
            PYTHONIOENCODING=ascii:replace {} script.py; PYTHONUTF8=1 {} script.py
            LC_ALL=POSIX PYTHONUTF8=0 {} script.py
        """,
        is_slow=True,
    ),
    "options of the environment": Unusual(
        code="""
            import sys; print(sys.flags, sys.warnoptions, hash('a') == hash('a')); print(__debug__)
        """,
        shell="""
            PYTHONOPTIMIZE=2 {} script.py
            PYTHONSAFEPATH=1 {} script.py
            PYTHONHASHSEED=1 {} script.py
            PYTHONWARNINGS=error {} script.py
            PYTHONNOUSERSITE=1 PYTHONSTARTUP=/nowhere {} script.py
        """,
    ),
    "what the environment inspects": Unusual(
        code="x = 6; print('script')",
        shell=r"""
            printf 'print(x * 7)\nexit(5)\n' | PYTHONINSPECT=1 {} script.py; echo $?
        """,
    ),
    "a sitecustomize of its own": Unusual(
        code="import sys, sitecustomize; print(sys.told, sitecustomize.__file__)",
        files={"site/sitecustomize.py": "import sys; sys.told = [p for p in sys.path if '_child' not in p]"},
        environment={"PYTHONPATH": "site"},
    ),
    "a usercustomize of its own": Unusual(
        code="import sys, usercustomize; print(sys.told, usercustomize.__file__, 'sitecustomize' in sys.modules)",
        shell="{any} $BASE script.py",
        files={f"user/lib/python3.{sys.version_info[1]}/site-packages/usercustomize.py": "import sys; sys.told = 1"},
        environment={"PYTHONUSERBASE": "user"},
        needs="$BASE -c 'import site, sys; sys.exit(not site.ENABLE_USER_SITE)'",
    ),
    "a sitecustomize that fails": Unusual(
        code="print('runs')",
        files={"site/sitecustomize.py": "import sys; 'script.py' in sys.orig_argv[1] and 1 / 0"},
        environment={"PYTHONPATH": "site"},
    ),
    "a module that is called like one of ours": Unusual(
        code="import begin, hooks; print(begin.mine, hooks.mine)",
        files={"site/begin.py": "mine = 1", "site/hooks.py": "mine = 2"},
        environment={"PYTHONPATH": "site"},
    ),
    # ---- how it ends
    "exit codes": Unusual(
        code="import sys; sys.exit(eval(sys.argv[1]))",
        shell="""
            for code in None 300 1.5 '"text"' '(1,)'; do {} script.py "$code"; echo $?; done
        """,
    ),
    "os._exit": Unusual(
        code="import os, atexit; atexit.register(print, 'never'); print('lost'); os._exit(9)",
        shell="{} script.py | cat; exit ${PIPESTATUS[0]}",
    ),
    "signals": Unusual(
        code=_ENDS_BY_SIGNAL,
        shell="for number in 2 9 15 34; do {} script.py $number; echo $?; done",
    ),
    "more signals": Unusual(
        code=_ENDS_BY_SIGNAL,
        shell="for number in 1 3 6 11 13 14 17 24 25 28 40 64; do {} script.py $number; echo $?; done",
        is_slow=True,
    ),
    "a wrong address": Unusual(
        code="import ctypes; ctypes.string_at(0)",
        shell="ulimit -c 0; {} script.py",
    ),
    "a wrong address, told": Unusual(
        code="""
            import ctypes, faulthandler
            faulthandler.enable()
            def inner(): ctypes.string_at(0)
            inner()
        """,
        shell="ulimit -c 0; {} script.py 2>&1 | grep -v 0x; exit ${PIPESTATUS[0]}",
    ),
    "abort": Unusual(
        code="import os; print('never flushed'); os.abort()",
        shell="ulimit -c 0; {} script.py | cat",
    ),
    "exec": Unusual(
        code="""
            import os; print('before', flush=True)
            os.execvp('sh', ['sh', '-c', 'echo $0 $1; exit 6', 'a', 'b'])
        """,
    ),
    "exec of itself": Unusual(
        code="""
            import os, sys
            print(sys.argv[1:], flush=True)
            if len(sys.argv) < 4: os.execv(sys.executable, [sys.executable, *sys.argv, 'x'])
        """,
        is_slow=True,
    ),
    "an error": Unusual(
        code="""
            def outer():
                try: {}['key']
                except KeyError as error:
                    error.add_note('a note')
                    raise ValueError('again') from error
            try: outer()
            except ValueError as error: raise ExceptionGroup('all', [error, TypeError()])
        """,
    ),
    "an error of syntax": Unusual(
        code="""
            print('never')
            x = = 3
        """,
        is_slow=True,
    ),
    "an interrupt of its own": Unusual(
        code="raise KeyboardInterrupt('own')",
        shell="{} script.py; echo $?",
        is_slow=True,
    ),
    "errors at the end": Unusual(
        code="""
            import atexit, sys, threading, weakref
            class Late:
                def __del__(self): raise RuntimeError('late')
            kept = Late()
            atexit.register(print, 'first')
            atexit.register(lambda: 1 / 0)
            atexit.register(print, 'last')
            weakref.finalize(kept, print, 'finalized')
            sys.stdout.write('no newline')
        """,
    ),
    "hooks for errors": Unusual(
        code="""
            import sys, threading
            sys.excepthook = lambda *found: print('hook', found[1])
            threading.excepthook = lambda found: print('thread', found.exc_value)
            sys.unraisablehook = lambda found: print('unraisable', found.exc_value)
            class Late:
                def __del__(self): raise RuntimeError('late')
            Late()
            def fail(): raise OSError('in a thread')
            thread = threading.Thread(target=fail); thread.start(); thread.join()
            raise ValueError('main')
        """,
        is_slow=True,
    ),
    "threads at the end": Unusual(
        code="""
            import sys, threading, time
            def slow():
                time.sleep(0.2); print('slow', flush=True); sys.exit(3)
            threading.Thread(target=slow).start()
            threading.Thread(target=time.sleep, args=(99,), daemon=True).start()
            def fail(): raise LookupError
            thread = threading.Thread(target=fail, name='t'); thread.start(); thread.join()
            sys.exit(4)
        """,
    ),
    "depth": Unusual(
        code="""
            import sys
            def depth(n=0):
                try: return depth(n + 1)
                except RecursionError: return n
            print(depth()); sys.setrecursionlimit(100); print(depth())
            def endless(): endless()
            endless()
        """,
        is_slow=True,
    ),
    # ---- processes
    "forks": Unusual(
        code="""
            import os
            for code in (0, 3):
                pid = os.fork()
                if not pid: print('child', code, flush=True); os._exit(code)
                print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
            pid = os.fork()
            if not pid: raise SystemExit('child ends as a script')
            os.waitpid(pid, 0)
            pid = os.fork()
            if not pid: os.kill(os.getpid(), 9)
            print(os.wait()[1])
        """,
    ),
    "a daemon": Unusual(
        code="""
            import os, sys, time
            if os.fork(): os.wait(); sys.exit(2)
            os.setsid()
            if os.fork(): os._exit(0)
            os.chdir('/'); os.umask(0)
            for fd in range(3): os.close(fd)
            while True: time.sleep(1)
        """,
    ),
    "a child that is left": Unusual(
        code="""
            import subprocess, sys
            subprocess.Popen(['sleep', '77'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            nowhere = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            subprocess.Popen(['sleep', '78'], start_new_session=True, **nowhere)
            sys.exit(1)
        """,
    ),
    "a session of its own": Unusual(
        code="""
            import os; print(os.getpgrp() == os.getpid()); os.setsid(); print(os.getsid(0) == os.getpid())
            os.setsid()
        """,
        shell="""
            {} script.py; echo $?; set -m
            {} script.py; echo $?
            {plain} -c 'import os, sys; os.setsid(); os.execvp(sys.argv[1], sys.argv[1:])' {} script.py
        """,
    ),
    "a group of its own": Unusual(
        code="""
            import os, signal, subprocess
            os.setpgrp(); child = subprocess.Popen(['sleep', '99'])
            signal.signal(15, signal.SIG_IGN)
            os.killpg(0, 15); print(child.wait(), flush=True); subprocess.Popen(['sleep', '98'])
            os.killpg(0, 9)
        """,
        shell="{} script.py; echo $?",
    ),
    "signals and masks": Unusual(
        code="""
            import os, signal, time
            heard = []
            for number in (10, 12, 15, 14, 35): signal.signal(number, lambda number, frame: heard.append(number))
            signal.pthread_sigmask(signal.SIG_BLOCK, [10, 12])
            for number in (12, 10, 15, 35): os.kill(os.getpid(), number)
            print(heard, signal.sigpending()); signal.pthread_sigmask(signal.SIG_UNBLOCK, [10, 12])
            print(sorted(heard))
            signal.setitimer(signal.ITIMER_REAL, 0.05); signal.pause(); print(heard[-1])
            signal.alarm(1); signal.signal(14, signal.SIG_DFL); signal.pause()
        """,
    ),
    "signals for all of its group": Unusual(
        code="""
            import signal, subprocess, sys, time
            subprocess.Popen(["sleep", "77"], stdout=-3, stderr=-3)
            signal.signal(signal.SIGUSR1, lambda *_: print("heard", flush=True))
            open("ready", "w").close()
            until = time.monotonic() + 4
            while time.monotonic() < until: time.sleep(0.1)
            sys.exit(4)
        """,
        shell="""
            timeout 2 {} script.py; echo $?; rm -f ready
            {plain} -c 'import os, signal, subprocess, sys, time
            process = subprocess.Popen(sys.argv[1:], process_group=0)
            while not os.path.exists("ready"): time.sleep(0.01)
            os.killpg(process.pid, 15); print(process.wait())' {} script.py; rm -f ready
            {plain} -c 'import os, subprocess, sys, time
            process = subprocess.Popen(sys.argv[1:])
            while not os.path.exists("ready"): time.sleep(0.01)
            process.send_signal(10); print(process.wait())' {} script.py
        """,
        is_slow=True,
    ),
    "a signal for its parent": Unusual(
        code="""
            import os, time
            os.kill(os.getppid(), 10)
            while not os.path.exists("heard"): time.sleep(0.01)
            print("done")
        """,
        shell="trap 'echo heard; touch heard' USR1; {} script.py & wait $!; wait; echo $?",
    ),
    "no /proc": Unusual(
        code="import os; print(os.path.exists('/proc/self'), sorted(os.listdir('.')) != [])",
        shell="unshare -m bash -c 'umount -l /proc && {} script.py 3<script.py; exit $?'",
        needs="unshare -m umount -l /proc",
    ),
    "a terminal": Unusual(
        code="""
            import os, shutil, sys, termios, tty
            print([os.isatty(fd) for fd in range(3)], os.ttyname(0) == os.ttyname(1), shutil.get_terminal_size())
            print(os.tcgetpgrp(0) == os.getpgrp(), os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid())
            before = termios.tcgetattr(0); tty.setraw(0); termios.tcsetattr(0, termios.TCSANOW, before)
            open("/dev/tty", "w").write("to the terminal\\n"); os.system("stty size; test -t 0 && echo there")
            sys.exit(3)
        """,
        shell="""
            {plain} -c 'import os, pty, sys; print(os.waitstatus_to_exitcode(pty.spawn(["bash", "-c", sys.argv[1]])))' \
            "{} script.py; echo \\$?; {} script.py | cat; set -m; {} script.py; echo \\$?"
        """,
    ),
    "memory is limited": Unusual(code="print(len(bytes(10**6)))", shell="ulimit -v 150000; {} script.py; echo $?"),
    "children heard of": Unusual(
        code="""
            import os, signal, subprocess
            heard = []
            signal.signal(signal.SIGCHLD, lambda *_: heard.append(1))
            subprocess.run(['true']); print(heard)
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            pid = os.fork()
            if not pid: os._exit(5)
            try: os.waitpid(pid, 0)
            except ChildProcessError as error: print(error)
        """,
    ),
    "signals that are ignored around it": Unusual(
        code="""
            import os, signal; print([signal.getsignal(n) for n in (1, 2, 3, 15, 17, 14, 10)])
            os.kill(os.getpid(), 15); os.system('exit 3'); print('on')
        """,
        shell="trap '' HUP INT QUIT TERM CHLD ALRM USR1; {} script.py; echo $?",
    ),
    "signals that are blocked around it": Unusual(
        code="import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []))",
        shell="""
            {plain} -c 'import os, signal, sys; signal.pthread_sigmask(0, [2, 10, 14, 15, 17, 18, 40])
            os.execvp(sys.argv[1], sys.argv[1:])' {} script.py
        """,
        is_slow=True,
    ),
    "an alarm from around it": Unusual(
        code="""
            import signal; print('alarm', signal.getitimer(0)[0] > 0, flush=True); signal.pause()
        """,
        shell="""
            {plain} -c 'import os, signal, sys; signal.alarm(5)
            os.execvp(sys.argv[1], sys.argv[1:])' {} script.py; echo $?
        """,
        is_slow=True,
    ),
    "its parent's death, and orphans": Unusual(
        code="""
            import ctypes, os, time
            prctl = ctypes.CDLL(None).prctl
            print(prctl(1, 9), prctl(36, 1))
            if not os.fork():
                if not os.fork(): time.sleep(0.1); os._exit(7)
                os._exit(0)
            print(sorted(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(2)))
        """,
    ),
    "workers": Unusual(
        code="""
            import multiprocessing, os, pickle, sys
            class Item:
                def __init__(self, number): self.number = number
            def twice(item): return Item(2 * item.number)
            def main():
                print(pickle.loads(pickle.dumps(Item(4))).number, type(Item(1)).__module__)
                for way in ("fork", "spawn", "forkserver"):
                    with multiprocessing.get_context(way).Pool(2) as pool:
                        print(way, [item.number for item in pool.map(twice, map(Item, range(4)))], flush=True)
                worker = multiprocessing.get_context("spawn").Process(target=os._exit, args=(7,))
                worker.start(); worker.join(); print(worker.exitcode)
            if __name__ == "__main__": main()
        """,
    ),
    "shared memory and files for a while": Unusual(
        code="""
            import os, tempfile
            from concurrent.futures import ProcessPoolExecutor
            from multiprocessing import shared_memory
            memory = shared_memory.SharedMemory(create=True, size=10); memory.close(); memory.unlink()
            leaked = shared_memory.SharedMemory(create=True, size=10, name=os.environ["TMPDIR"].replace("/", "-"))
            with tempfile.NamedTemporaryFile() as file: file.write(b'x')
            if __name__ == '__main__':
                with ProcessPoolExecutor(2) as pool: print(list(pool.map(abs, [-1, 2])))
        """,
        is_slow=True,
    ),
    "loops": Unusual(
        code="""
            import asyncio, sys
            async def main():
                child = await asyncio.create_subprocess_exec(sys.executable, '-c', 'print(6 * 7)', stdout=-1)
                print(await child.communicate(), child.returncode)
                asyncio.get_running_loop().add_signal_handler(10, print, 'heard')
                import os; os.kill(os.getpid(), 10); await asyncio.sleep(0.05)
                print(await asyncio.gather(asyncio.to_thread(abs, -3), asyncio.sleep(0, 'x')))
            asyncio.run(main())
        """,
        is_slow=True,
    ),
    "other Pythons": Unusual(
        code="""
            import glob, os, subprocess
            for python in sorted(glob.glob(os.environ["PYTHONS"] + "/*/bin/python")):
                code = "import sys; print(sys.version_info[:2], 'json' in sys.modules, 'torch' in sys.modules)"
                done = subprocess.run([python, "-c", code], capture_output=True, text=True)
                print(done.returncode, done.stdout, done.stderr)
        """,
        needs="ls $PYTHONS/*/bin/python",
        is_slow=True,
    ),
    "namespaces": Unusual(
        code="""
            import os
            print(os.getpid(), os.getppid() in (0, 1), os.getuid(), sorted(p for p in os.listdir('/proc') if p == '1'))
        """,
        shell="""
            {any} unshare -U -r -p -f --mount-proc {plain} -c "import os; print(os.getpid(), os.getuid())"
            unshare -p -f --mount-proc {any} {plain} -c "import sys; sys.exit(4)"
        """,
        needs="unshare -U -r -p -f --mount-proc true && unshare -p -f --mount-proc true",
    ),
    # ---- files and descriptors
    "descriptors from around it": Unusual(
        code="""
            import os; print(sorted(os.listdir('/proc/self/fd')), os.read(3, 9), open(9).read())
            os.write(7, b'written')
        """,
        shell="""
            {} script.py 3<three 9<nine 7>seven; {any} cat <(echo a pipe) /dev/fd/5 5<nine; cat seven
        """,
        files={"three": "three\n", "nine": "nine\n"},
    ),
    "closed before it begins": Unusual(
        code="""
            import os, sys
            file = open('told-' + sys.argv[1], 'w')
            streams = [sys.stdin is None, sys.stdout is None, sys.stderr is None]
            print(sorted(os.listdir('/proc/self/fd')), streams, file.fileno(), file=file)
            sys.exit(3)
        """,
        shell="""
            {} script.py in <&-; echo $?
            {} script.py out >&-; echo $?
            {} script.py err 2>&-; echo $?
            {} script.py all <&- >&- 2>&-; echo $?
        """,
    ),
    "closed by itself": Unusual(
        code="""
            import os, sys
            os.closerange(0, 256); file = open('told', 'w'); file.write(str(file.fileno())); file.close()
            raise ValueError('unheard')
        """,
        shell="{} script.py; echo $?",
    ),
    "nobody reads it": Unusual(
        code="""
            import sys
            for number in range(100000): print(number)
        """,
        shell="set -o pipefail; {} script.py | head -n 1; echo ${PIPESTATUS[0]}",
    ),
    "no room for output": Unusual(
        code="import sys; print('out'); print('err', file=sys.stderr)",
        shell="{} script.py >/dev/full; echo $?; {} script.py 2>/dev/full; echo $?",
    ),
    "much output": Unusual(
        code="""
            import sys
            sys.stdout.buffer.write(bytes(range(256)) * 20000); sys.stdout.flush()
            print('x' * 10**6, file=sys.stderr)
        """,
        shell="{} script.py 2>err | sha256sum; sha256sum <err",
        is_slow=True,
    ),
    "one file for both": Unusual(
        code="""
            import sys
            for n in range(2000): print(n, flush=True); print(n, file=sys.stderr)
            print('last')
        """,
        shell="{} script.py >both 2>&1; cat both",
        is_slow=True,
    ),
    "input": Unusual(
        code="import sys; print(input(), sys.stdin.buffer.read()); print(sys.stdin.isatty())",
        shell=r"""
            printf 'line\n\0\377rest' | {} script.py; {} script.py <script.py
        """,
        is_slow=True,
    ),
    "streams replaced": Unusual(
        code="""
            import io, os, sys
            kept = sys.stdout; sys.stdout = io.StringIO(); print('caught'); sys.stderr = None
            kept.write(sys.stdout.getvalue()); os.dup2(os.open('told', os.O_CREAT | os.O_WRONLY), 1)
            kept.write('to a file'); sys.stdout = None
        """,
        is_slow=True,
    ),
    "modes and links": Unusual(
        code="""
            import os
            os.umask(0o077); open('a', 'w').write('a'); os.mkfifo('pipe'); os.symlink('a', 'link')
            os.mkdir('d', 0o711); os.chdir('d'); open('../b', 'x')
            os.link('../a', 'hard')
            print(os.stat('hard').st_nlink, sorted(set(os.listdir('..')) - {'ullage-runs'}))
        """,
    ),
    "a folder that is gone": Unusual(
        code="""
            import os
            try: print(os.getcwd())
            except OSError as error: print(error.strerror)
            open('/proc/self/cwd/x', 'w')
        """,
        shell="""
            here=$PWD
            mkdir going; cd going; rmdir ../going
            {} $here/script.py; echo $?
            {any} bash -c "exit 3"; echo $?
        """,
        files={"gone/kept": ""},
    ),
    "a folder that it removes": Unusual(
        code="""
            import os, shutil, sys
            for name in os.listdir('.'): shutil.rmtree(name, True)
            here = os.getcwd(); os.chdir('/'); shutil.rmtree(here); sys.exit(int(sys.argv[1]))
        """,
        shell="""
            here=$PWD
            for code in 0 3; do mkdir going; cd going
            {} $here/script.py $code; echo $?; cd $here; done
        """,
    ),
    "a folder that cannot be written to": Unusual(
        code="""
            import os, sys
            print(sorted(os.listdir()))
            try: open('x', 'w')
            except OSError as error: print(error.strerror)
            sys.exit(3)
        """,
        shell="""
            mkdir locked; mount -t tmpfs -o ro none locked
            cd locked && {} ../script.py; echo $?; cd ..; umount locked
        """,
        needs="mkdir tried && mount -t tmpfs none tried && umount tried && rmdir tried",
    ),
    "a folder without room": Unusual(
        code="""
            import os, sys
            try: open('x', 'w').write('x' * 9999)
            except OSError as error: print(error.strerror)
            sys.exit(3)
        """,
        shell="""
            mkdir full; mount -t tmpfs -o size=4k,nr_inodes=2 none full && cd full && touch one
            {} ../script.py; echo $?; cd ..; umount full
        """,
        needs="mkdir tried && mount -t tmpfs none tried && umount tried && rmdir tried",
    ),
    "limits of its own": Unusual(
        code="""
            import os, resource, signal, sys
            resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))
            try: kept = [open('/dev/null') for _ in range(20)]
            except OSError as error: print(error)
            resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
            try: bytes(2 << 30)
            except MemoryError: print('no memory')
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
            try: open('x', 'wb', 0).write(bytes(999)); open('x', 'ab', 0).write(b'1')
            except OSError as error: print(error)
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL); open('x', 'ab', 0).write(b'1')
        """,
        shell="ulimit -c 0; {} script.py; echo $?",
        is_slow=True,
    ),
    "limits from around it": Unusual(
        code="""
            import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))
            print(len([open('/dev/null').fileno()]))
        """,
        shell="ulimit -n 16; {} script.py; ulimit -f 0; {} script.py",
    ),
    "processor time": Unusual(
        code="""
            import resource
            resource.setrlimit(resource.RLIMIT_CPU, (1, 2))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            while True: pass
        """,
        shell="{} script.py; echo $?",
        is_slow=True,
    ),
    # ---- the interpreter
    "a package and its main": Unusual(
        shell="{} -m pack a; {} pack b; {} -m pack.none; {} -m none",
        files={
            "pack/__init__.py": "print('init', __name__)",
            "pack/__main__.py": "import sys; print(sys.argv[1:], __package__, __spec__.name, sys.path[0])",
        },
        is_slow=True,
    ),
    "archives": Unusual(
        code="""
            import sys; print(sys.argv[1:], __name__, sys.path[0], __loader__.__class__.__name__)
        """,
        shell="""
            mkdir app
            cp script.py app/__main__.py
            {plain} -m zipapp app -o app.pyz
            {} app.pyz a
            {plain} -m compileall -q -b script.py
            {} script.pyc b
        """,
        is_slow=True,
    ),
    "a script without an ending": Unusual(
        code="import sys; print(sys.argv[1:], __file__)",
        shell=r"""
            cp script.py 'my script'
            {} 'my script' a
            mkdir sub
            cp script.py sub/-x
            {} sub/-x
            cp script.py $'sub/\xff'
            {} $'sub/\xff'
        """,
    ),
    "a script that runs others": Unusual(
        code="""
            import runpy, sys
            print(runpy.run_path('other.py', run_name='__main__')['x'])
            runpy.run_module('other', alter_sys=True)
            exec(compile(open('other.py').read(), 'named', 'exec'))
            import code
            code.interact(banner='', readfunc=iter(['x + 1', 'exit(8)']).__next__ if False else None)
        """,
        shell=r"""
            printf 'x + 1\nexit(8)\n' | {} script.py
        """,
        files={"other.py": "import sys; x = 3; print(__name__, sys.argv)"},
    ),
    "its own text": Unusual(
        code="""
            import inspect, linecache, sys
            def f(): return 1
            print(inspect.getsource(f), len(inspect.getsource(sys.modules['__main__'])))
            print(inspect.stack()[0].function, len(inspect.stack()))
        """,
    ),
    "what is traced": Unusual(
        code="""
            import sys, threading
            seen = []
            def trace(frame, event, arg):
                file = frame.f_code.co_filename
                if 'importlib' not in file and 'sitecustomize' not in file: seen.append((event, frame.f_code.co_name))
                return trace
            sys.settrace(trace); threading.setprofile(print)
            import colorsys
            colorsys.rgb_to_hls(1, 0, 0)
            sys.settrace(None)
            print(len(seen), seen[-9:])
            sys.setprofile(lambda frame, event, arg: seen.append(event)); sorted([3, 1]); sys.setprofile(None)
            print(len(seen))
        """,
    ),
    "imports of its own": Unusual(
        code="""
            import importlib, importlib.abc, importlib.machinery, sys
            class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
                def find_spec(self, name, path, target=None):
                    if name in ('made', 'torch'): return importlib.machinery.ModuleSpec(name, self)
                def exec_module(self, module): module.x = 1
            sys.meta_path.append(Finder()); import made, torch
            print(made.x, made.__spec__.origin, torch.x, torch.__spec__.loader.__class__)
            importlib.reload(torch); print(torch.x); del sys.modules['torch']; import torch
            sys.meta_path[:] = [Finder()]; del sys.modules['torch']; import torch; print(torch.x)
        """,
    ),
    "a torch that is broken": Unusual(
        code="""
            def use():
                import torch
            use()
        """,
        files={
            "torch/__init__.py": "from torch import inner\n",
            "torch/inner.py": "def load():\n    raise OSError('libcudart.so: cannot open')\nload()\n",
        },
    ),
    "a torch that is not there": Unusual(
        code="""
            import importlib.util
            print(importlib.util.find_spec('torch'))
            import torch
        """,
        shell="{any} python -S script.py; {any} /usr/bin/env python -S -c 'import torch.nn'",
    ),
    "a clock that jumps": Unusual(
        code="""
            import itertools, time
            jumps = itertools.cycle([0.0, 4e9, -1.0, 1e9])
            time.time = time.monotonic = jumps.__next__
            time.sleep = lambda *_: None
            import subprocess, sys, threading
            subprocess.run([sys.executable, '-c', 'print(1)']); threading.Event().wait(0.01); print(time.time())
        """,
        is_slow=True,
    ),
    "memory told": Unusual(
        code="""
            import gc, tracemalloc
            tracemalloc.start()
            x = [bytes(1000) for _ in range(9)]
            print(len(gc.get_objects()) > 0, tracemalloc.is_tracing(), gc.callbacks, gc.get_stats()[2]['uncollectable'])
            gc.disable(); gc.set_debug(0); print(gc.get_freeze_count())
        """,
        is_slow=True,
    ),
    "another user": Unusual(
        code="""
            import os
            os.setgroups([]); os.setgid(65534); os.setuid(65534); print(os.getresuid())
            try: os.setuid(0)
            except OSError as error: print(error)
            os._exit(3)
        """,
        needs="test $(id -u) = 0",
    ),
    # ---- with torch
    "threads that it waits for": Unusual(
        code=_WITH_TORCH
        + dedent("""
            import time
            time.sleep(1.3)
            for thread in threading.enumerate():
                if thread is not threading.current_thread(): thread.join()
            print(threading.active_count())
        """),
        needs_torch=True,
    ),
    "a sleep that is none, and times that are counted": Unusual(
        code=_WITH_TORCH
        + dedent("""
            import time, unittest.mock
            before = time.process_time()
            with unittest.mock.patch("time.time", side_effect=range(3)), unittest.mock.patch("time.sleep"):
                for step in range(5): model(torch.zeros(2, 8, device="cuda")).sum().backward(); optimizer.step()
                threading.Event().wait(1.5)
                print(time.time(), time.time(), time.time(), time.process_time() - before < 0.9)
        """),
        needs_torch=True,
    ),
    "two ranks": Unusual(
        code="""
            import os, sys
            import torch, torch.distributed as dist
            dist.init_process_group('gloo')
            rank = torch.tensor([dist.get_rank()]); dist.all_reduce(rank)
            dist.barrier(); dist.destroy_process_group()
            open('rank' + os.environ['RANK'], 'w').write(f'{rank.item()} {sys.argv[1:]}')
        """,
        shell="""
            OMP_NUM_THREADS=1 {} -m torch.distributed.run --standalone --nproc-per-node 2 script.py a; code=$?
            rm -rf $TMPDIR/torchelastic_*; exit $code
        """,
        needs_torch=True,
    ),
}
