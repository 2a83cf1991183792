"""`python -m shardyard`."""

import sys

from shardyard.cli import main

sys.exit(main())
