"""Processes that end with the one that started them, however that ends, together with all that they started."""

import os
import signal
import threading


def end_with_parent() -> None:
    """To be called once, where standard input is a pipe: this process ends with it, that is, also where the process
    that holds its other end is killed. One that was started in a session of its own takes its own processes with it.
    """

    def wait() -> None:
        # os.read takes no lock, which a worker that is forked meanwhile would inherit.
        while os.read(0, 1):
            pass
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
