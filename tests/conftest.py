"""For all tests: hypothesis judges what is found, not how fast a busy machine finds it; Ctrl-C is what it always is.

No file is taken for a terminal.
"""

import os
import signal

from hypothesis import settings

settings.register_profile("gyre", deadline=None)
settings.load_profile("gyre")

# A shell that starts the suite in the background has it ignore interrupts, `nohup` the end of a terminal, and so would
# every process that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)  # which is the default again for those

# Either of these, which automatic builds set, has a bar or colours written into any file.
for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
    os.environ.pop(name, None)
