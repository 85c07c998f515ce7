"""A rank that hangs up before it says anything, and does not end."""

import os
import sys
import time

if __name__ == "__main__":
    os.close(int(sys.argv[1]))
    time.sleep(300)
