"""The one thing that pyproject.toml cannot say: the native kernel, left out where there is no compiler."""

from pathlib import Path

from setuptools import Extension, setup

NATIVE = Path("cas/native")

setup(
    ext_modules=[
        Extension(
            "gpu_train_cas.codecs._kernel",
            sources=sorted(map(str, NATIVE.glob("*.c"))),
            depends=sorted(map(str, NATIVE.glob("*.h"))),
            extra_compile_args=["-O3", "-std=c11", "-mtune=generic", "-ffp-contract=off", "-Wall", "-Wextra", "-g0"],
            libraries=["m"],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
