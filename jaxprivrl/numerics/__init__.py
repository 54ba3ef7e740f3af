"""What every JAX program here stands on: batch axes, random numbers, process settings.

May import JAX and nothing of the package. May be imported from by every folder, inside functions where JAX is optional.
"""
