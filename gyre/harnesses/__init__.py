"""Agent programs that gyre can run. Nothing here knows how they are launched, and no adapter imports them."""
