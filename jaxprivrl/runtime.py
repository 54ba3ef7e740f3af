"""Process-wide settings: devices and compilation cache. Set by the command line or by a call, never on import."""

import os
from pathlib import Path

import jax

# XLA's library kernels for small dots and its splitting of small loops over threads cost several times more than
# they save on arrays of this size; runs are spread over devices instead.
COMPILER_OPTIONS: dict[str, bool | str] = {
    "xla_cpu_experimental_ynn_fusion_type": "",
    "xla_cpu_multi_thread_eigen": False,
    "xla_cpu_prefer_vector_width": "512",
}

# XLA runs a loop as one kernel call per operation and iteration, unless the loop is small; then it is one function.
# Here all loops are better off so. There is no compiler option for it, only this flag, read when the backend starts.
_LOOP_FLAG = "xla_cpu_small_while_loop_byte_threshold"


def configure(num_devices: int | None = None, cache: bool = True) -> None:
    """One XLA device per core on CPU, loops compiled whole, and a persistent compilation cache.

    Call it before the first JAX operation; later, only the cache takes effect.

    Args:
      num_devices: CPU devices; by default as many as the cores this process may use.
      cache: keep compiled programs in JAX_COMPILATION_CACHE_DIR, or else in the user's cache folder.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    flags = os.environ.get("XLA_FLAGS", "")
    if _LOOP_FLAG not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_backend_extra_options={_LOOP_FLAG}={10**9}".strip()
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
