"""The chain is pure Python: reading one needs neither Spark nor Arrow."""

import subprocess
import sys

PROGRAM = """
import pkgutil, importlib, sys
import floodmark.chain as chain
before = set(sys.modules)
for module in pkgutil.iter_modules(chain.__path__):
    importlib.import_module(f"floodmark.chain.{module.name}")
heavy = ("pyspark", "pyarrow", "pandas", "numpy", "floodmark.storage", "floodmark.ledger", "floodmark.engine")
print(sorted(name for name in set(sys.modules) - before if name.startswith(heavy)))
"""


def test_chain_imports_nothing_heavy():
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
