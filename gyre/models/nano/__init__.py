"""nano: the small policy that ships with gyre, and the script that makes it. Nothing here serves or trains in a run."""
