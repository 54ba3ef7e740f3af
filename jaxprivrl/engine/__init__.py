"""The simulation: one user at a time, many runs as one program. Objects come in, names do not.

May import everything above it: `learners`, `privatizers`, `privacy`, `mdp`, `problem`, `numerics`. Import `run` and its
types from `engine.run`.
"""
