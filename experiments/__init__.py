"""Small experiments that show on a CPU what each idea does: sweeps of train.py, each with its table and its picture."""
