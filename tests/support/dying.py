"""A process that dies as native code does."""

import os
import signal

os.kill(os.getpid(), signal.SIGSEGV)
