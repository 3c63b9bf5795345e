"""`grace demo`: a network trained plain and with several methods, on loopback and on slower links."""
