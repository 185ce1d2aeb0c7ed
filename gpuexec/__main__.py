"""Entry point of the command line as ``python -m gpuexec``."""

import sys

from gpuexec.cli import main

sys.exit(main())
