"""The mathematics of privacy on the host: reports, sensitivities, laws, strategies, composition, accounting, errors.

Knows no mechanism by name: everything asks a `Privatizer` object. May import `problem` and `schedules`, and JAX only
inside a law's sampler. Import from its modules.
"""
