import subprocess
import sys


def test_environments_rendering_and_rewards_import_no_model_library():
    code = (
        "import sys, pkgutil, importlib\n"
        "for part in ('environment', 'rendering', 'reward'):\n"
        "    package = importlib.import_module(f'rollart.data_plane.{part}')\n"
        "    for item in pkgutil.iter_modules(package.__path__):\n"
        "        importlib.import_module(f'{package.__name__}.{item.name}')\n"
        "print(sorted({'torch', 'ray', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
