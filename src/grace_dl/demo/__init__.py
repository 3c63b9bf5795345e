"""`grace demo`: one small network, trained plain and then with several methods, on two local workers."""
