"""Experiments by names and numbers: specs, sweeps, tuning, comparisons, the paper's figure, results, plots and tables.

May import everything but `cli`. Here, and nowhere below, names become objects.
"""
