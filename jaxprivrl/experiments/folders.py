"""Folders that commands write: checked and reserved before the work, whole or not there at all after it."""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

RESULTS, RUN = "results.nc", "run.json"
_PARTIAL = ".partial"  # a run folder that is being made
_TOO_LARGE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_folder(folder: str | Path) -> None:
    """Raises unless files can be written to the folder, which may be made for it; a trial folder comes and goes."""
    folder = Path(folder)
    try:
        nearest = next(part for part in (folder, *folder.absolute().parents) if part.exists())
        if not nearest.is_dir():
            raise ValueError(f"{nearest} is a file, expected a folder to write. Pass another --out.")
        with tempfile.TemporaryDirectory(prefix=".jaxprivrl-", dir=nearest):
            pass
    except OSError as error:
        raise _unwritable(folder, error) from error


def check_space(folder: str | Path, size: int) -> None:
    """Raises unless so many bytes are free where the folder is, or will be."""
    nearest = next(part for part in (Path(folder), *Path(folder).absolute().parents) if part.exists())
    free = shutil.disk_usage(nearest).free
    if free < size:
        raise ValueError(_too_large(Path(folder), size, free))


def check_free(folder: str | Path, overwrite: bool) -> None:
    """Raises unless a run folder can be made there: nothing is in the way but an earlier run that may be replaced."""
    folder = Path(folder)
    if Path.cwd().is_relative_to(folder.resolve()):
        raise ValueError(
            f"--out '{folder}' is the current folder or holds it, expected the name of a folder to make. Pass one such "
            "as --out runs/a."
        )
    check_folder(folder)
    if folder.is_symlink():
        raise ValueError(f"{folder} is a symbolic link, and a run folder is replaced whole. Pass another --out.")
    if not folder.exists():
        return
    if (folder / RESULTS).exists() or (folder / RUN).exists():
        if not overwrite:
            raise ValueError(f"{folder} already holds results. Pass --overwrite or another --out.")
    elif any(folder.iterdir()):
        raise ValueError(f"{folder} holds other files, and a run folder is replaced whole. Pass another --out.")


class Reserved:
    """A place for a run folder, held from `with` on: `<folder>.partial` beside it, locked against other processes.

    Leaving without `write` removes it, and the folders above it that were made for it. What a process leaves behind
    that was killed is taken over by the next one.
    """

    def __init__(self, folder: str | Path, overwrite: bool = False) -> None:
        check_free(folder, overwrite)
        self.folder = Path(folder)
        whole = Path(os.path.abspath(folder))
        self._partial = whole.with_name(whole.name + _PARTIAL)
        self._made = [part for part in self._partial.parents if not part.exists()]
        self._written = False

    def __enter__(self) -> Self:
        try:
            self._partial.mkdir(parents=True, exist_ok=True)
            if not {RESULTS, RUN}.issuperset(os.listdir(self._partial)):
                raise ValueError(f"{self._partial} holds other files, and {self.folder} is made there. Rename it.")
            self._file = (self._partial / RESULTS).open("ab")
            _lock(self._file.fileno())
            self._file.truncate(0)
        except BlockingIOError:
            self._file.close()
            raise ValueError(f"{self.folder} is being written by another run. Pass another --out.") from None
        except OSError as error:
            self._clear()
            raise _unwritable(self.folder, error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if not self._written:
            self._clear()

    def allocate(self, size: int) -> None:
        """Takes so many bytes of the disk now, so that they are there at the end; raises if they are not."""
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file.fileno(), 0, size)
                return
        except OSError as error:
            if error.errno in _TOO_LARGE:
                raise ValueError(_too_large(self.folder, size, shutil.disk_usage(self._partial).free)) from error
        check_space(self.folder, size)  # as well as a system that cannot promise can tell

    def write(self, files: Mapping[str, bytes | memoryview]) -> None:
        """Writes the files, by name, and puts the folder in its place; an OSError leaves an earlier run as it was."""
        for name, content in files.items():
            _write(self._partial / name, content)
        self._file.close()
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self._partial.rename(self.folder)
        self._written = True

    def _clear(self) -> None:
        shutil.rmtree(self._partial, ignore_errors=True)
        for part in self._made:
            with contextlib.suppress(OSError):
                part.rmdir()


@contextlib.contextmanager
def rescue(out: Path, write: Callable[[Path], Any]) -> Iterator[None]:
    """Around the writing of `out`: where the disk fails it, `write` is called with a place in a temporary folder.

    The OSError that comes out names the place. Results that took hours are not lost to a full disk.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        for base in (None, Path.home()):
            place = None
            try:
                place = Path(tempfile.mkdtemp(prefix="jaxprivrl-", dir=base))
                write(place / out.name)
            except OSError:
                if place is not None:
                    shutil.rmtree(place, ignore_errors=True)
                continue
            raise OSError(
                f"Cannot write {out} ({reason}), so the results are in {place / out.name}. Make room and move them."
            ) from error
        raise OSError(
            f"Cannot write {out} ({reason}), nor {tempfile.gettempdir()}, so the results are lost. Make room and run "
            "again."
        ) from error


def _write(path: Path, content: bytes | memoryview) -> None:
    """Writes over a file from its start, so that space taken for it is used, and cuts off what is left of it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())  # some file systems tell of a full disk no earlier


def _lock(descriptor: int) -> None:
    """Locks an open file against other processes for as long as it is open; BlockingIOError if one has it."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # nor on this file system
        return


def _unwritable(folder: Path, error: OSError) -> ValueError:
    return ValueError(f"Cannot write {folder} ({error.strerror}), expected a folder that can be. Pass another --out.")


def _too_large(folder: Path, size: int, free: int) -> str:
    return (
        f"{folder} needs up to {gigabytes(size)}, and {gigabytes(free)} are free there. Pass another --out, a larger "
        "--record-every or fewer seeds."
    )


def gigabytes(size: float) -> str:
    """A size for people: 12 kB, 3.4 MB, 130 GB."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB" if size < 1000 else f"{size:,.0f} TB"
