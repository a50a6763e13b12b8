"""Reading ahead in a process that forks."""

import subprocess
import sys

SCRIPT = """
import os, signal, threading
import numpy as np
from gpuload.read.read_ahead import ReadAhead

ahead = ReadAhead()
ahead.want({0: np.zeros(9, np.uint8)}, kept={0})
held = threading.Event()

def hold():
    with ahead._change:  # as the reading thread does, now and then
        held.set()
        threading.Event().wait()

threading.Thread(target=hold, daemon=True).start()
held.wait()
if (process := os.fork()) == 0:
    signal.alarm(10)
    ahead.stop()
    os._exit(0)
print(os.waitpid(process, 0)[1])
os._exit(0)
"""


def test_a_forked_child_does_not_wait_for_a_lock_that_nobody_will_release() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert done.stdout == "0\n", done.stderr
