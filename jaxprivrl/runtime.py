"""Process-wide settings: devices and compilation cache. Set by the command line or by a call, never on import."""

import os
from pathlib import Path

import jax

# XLA's library kernels for small dots and its splitting of small loops over threads cost several times more than
# they save on arrays of this size; runs are spread over devices instead.
COMPILER_OPTIONS: dict[str, bool | str] = {
    "xla_cpu_experimental_ynn_fusion_type": "",
    "xla_cpu_multi_thread_eigen": False,
}


def configure(num_devices: int | None = None, cache: bool = True) -> None:
    """One XLA device per core on CPU, and a persistent compilation cache; call it before the first JAX operation.

    Args:
      num_devices: CPU devices; by default as many as the cores this process may use.
      cache: keep compiled programs in JAX_COMPILATION_CACHE_DIR, or else in the user's cache folder.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        jax.config.update("jax_num_cpu_devices", num_devices or cores)
    except RuntimeError:
        pass  # the backend has started: its devices are what they are
    if cache:
        base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        folder = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(base / "jaxprivrl"))
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
