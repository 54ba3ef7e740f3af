"""Process-wide settings: devices and compilation cache. Set by the command line or by a call, never on import."""

import os
import warnings
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


_chosen: int | None = None  # CPU devices of the last call that could set them


def configure(num_devices: int | None = None, cache: bool = True) -> None:
    """One XLA device per core on CPU, loops compiled whole, and a persistent compilation cache.

    Call it before the first JAX operation. Later only the cache takes effect, and a warning says what is lost, if
    anything is.

    Args:
      num_devices: CPU devices; by default as many as an earlier call has set, or as the cores this process may use.
      cache: keep compiled programs in JAX_COMPILATION_CACHE_DIR, or else in the user's cache folder.
    """
    global _chosen
    flags = os.environ.get("XLA_FLAGS", "")
    wanted, unseen = num_devices or _chosen or cores(), _LOOP_FLAG not in flags
    if unseen:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_backend_extra_options={_LOOP_FLAG}={10**9}".strip()
    try:
        jax.config.update("jax_num_cpu_devices", wanted)
        _chosen = wanted
    except RuntimeError:  # the backend has started, and its devices are what they are
        _warn_of_losses(wanted, unseen)
    if cache:
        base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        folder = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(base / "jaxprivrl"))
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _warn_of_losses(wanted: int, unseen: bool) -> None:
    """Warns of what a backend that had started has not been told; an accelerator needs none of it."""
    if jax.default_backend() != "cpu":
        return
    there = jax.local_device_count()
    lost = [f"keeps {there} CPU device{'s'[: there > 1]} where {wanted} were asked for"] if there != wanted else []
    lost += ["compiles loops piece by piece, which is slower"] if unseen else []
    if lost:
        warnings.warn(
            f"JAX had started before jaxprivrl.configure(), so it {' and '.join(lost)}: call configure() before the "
            "first JAX operation of the process.",
            stacklevel=3,
        )


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory() -> int | None:
    """Bytes that this process can still get for its arrays: of the host, or of the accelerators; None if unknown.

    On Linux the least of what the kernel calls available and what the control group has left.
    """
    if jax.default_backend() != "cpu":
        found = [device.memory_stats() or {} for device in jax.local_devices()]
        free = [stats["bytes_limit"] - stats.get("bytes_in_use", 0) for stats in found if "bytes_limit" in stats]
        return sum(free) if len(free) == len(found) else None
    limits = [_kernel_memory(), *(_group_memory(*names) for names in _GROUP_FILES)]
    return min((limit for limit in limits if limit is not None), default=None)


_GROUP_FILES = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", ""),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)


def _kernel_memory() -> int | None:
    try:
        rows = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(rows["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _group_memory(folder: str, limit: str, usage: str, prefix: str) -> int | None:
    """What a control group has left; the files that it keeps in memory can be dropped."""
    try:
        most, used = (int((Path(folder) / name).read_text()) for name in (limit, usage))
        rows = dict(line.split() for line in (Path(folder) / "memory.stat").read_text().splitlines())
        return most - used + sum(int(rows[f"{prefix}{kind}_file"]) for kind in ("active", "inactive"))
    except (OSError, KeyError, ValueError):  # no such file, or "max"
        return None
