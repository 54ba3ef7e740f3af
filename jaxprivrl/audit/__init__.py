"""Empirical lower bounds on epsilon: attacks, and the audits that use them.

May import `engine`, `learners`, `privatizers`, `privacy`, `mdp`; knows no mechanism by name. Import from `audit.audit`.
"""
