import sys
from pathlib import Path

# Tests are imported by path, not as packages; this makes their helper module importable.
sys.path.insert(0, str(Path(__file__).parent))
