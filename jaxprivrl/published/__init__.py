"""The authors' released experiment, through the same interfaces, and not private.

May import `learners`, `privatizers`, `privacy`, `mdp`, `numerics`. Import its registries from `published.experiment`.
"""
