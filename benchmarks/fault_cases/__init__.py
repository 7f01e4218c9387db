"""The faults of stock dispatch mode, each as a function that runs in every rank and a judge of what came of it."""
