"""A user id of a container that no user has, without `HOME`: there is no home folder."""

import pwd

import pytest
from support.command import done

from tagmatch import InvalidValueError, TagMatch
from tagmatch.model.kernels.jit import cache_folder


@pytest.fixture(autouse=True)
def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


def test_kernels_are_not_kept(recwarn: pytest.WarningsRecorder) -> None:
    assert cache_folder.__wrapped__() is None
    assert "compiled kernels cannot be kept (there is no home folder)" in str(recwarn.pop(RuntimeWarning).message)


@pytest.mark.parametrize("path", ["~/x.index", "~", "~nobody-has-this-name/x.index"])
def test_paths_in_it(path: str) -> None:
    with pytest.raises(InvalidValueError, match="no home folder for ~"):
        TagMatch(path)
    with pytest.raises(InvalidValueError, match="no home folder for ~"):
        done("match", "x.index", path)
