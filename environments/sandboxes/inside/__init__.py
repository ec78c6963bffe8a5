"""What runs inside a box as process 1: standard library only, copied in as text, started with the box's Python."""
