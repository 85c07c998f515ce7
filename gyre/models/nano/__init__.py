"""nano: the small policy that ships with gyre, and the script that makes it. Nothing here may serve or train at run time."""
