"""How a module of these tests is run without warnings: as `python -W ignore -m MODULE` would run it."""

RUN = """
import runpy, sys, warnings
warnings.simplefilter("ignore")
module = sys.argv.pop(1)
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
