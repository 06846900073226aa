"""Opens a run for the whole program. Python imports this by itself before the program; `runguard run` puts it in the way."""

import importlib
import os
import sys


def _begin():
    try:
        from runguard import program
    except ImportError:
        # The program itself would spend unseen; what it starts in other environments may be anything.
        if os.environ.get("RUNGUARD_RUN_PARENT") == str(os.getppid()):
            sys.stderr.write(
                "runguard run: the package runguard-breaker is not installed for %s, so nothing would be counted. Install it there: "
                "%s -m @INSTALL_PYTHON@\n" % (sys.executable, sys.executable)
            )
            sys.stderr.flush()
            open(os.path.join(os.environ["RUNGUARD_RUN_FOLDER"], "python.missing"), "w").close()
            os._exit(2)
        return
    try:
        program.begin()
    except BaseException as problem:
        # Python goes on without a sitecustomize that fails, and then nothing would be counted.
        sys.stderr.write("runguard run: the run could not be opened, so the program is not started: %s: %s\n" % (type(problem).__name__, problem))
        sys.stderr.flush()
        open(os.path.join(os.environ["RUNGUARD_RUN_FOLDER"], "python.missing"), "w").close()
        os._exit(2)


def _give_way():
    """Another sitecustomize may be behind this one."""
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != folder]
    own = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError:
        sys.modules["sitecustomize"] = own


if os.environ.get("RUNGUARD_RUN"):
    _begin()
# Last: one that fails must not stand before the run.
_give_way()
