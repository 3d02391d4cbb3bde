#!/bin/sh
# Installs one part of requirements.txt into /opt/venv: `torch` (PyTorch and what CUDA needs) or `rest`.
# Run by the Dockerfile only. The requirements are complete (compiled from pyproject.toml), so no part looks for more.
set -eu
here=$(dirname "$0")
heavy='^(torch|triton|nvidia-|cuda-)'
case $1 in
torch) grep -E "$heavy" "$here/requirements.txt" >/tmp/part.txt ;;
rest) grep -E '^[A-Za-z0-9]' "$here/requirements.txt" | grep -vE "$heavy" >/tmp/part.txt ;;
esac
if command -v uv >/dev/null; then
  uv pip install --python /opt/venv/bin/python --no-deps --compile-bytecode -r /tmp/part.txt
else
  /opt/venv/bin/pip install --no-cache-dir --no-deps -r /tmp/part.txt
fi
rm /tmp/part.txt
if [ "$1" = rest ]; then
  # The packages' own test suites, which nothing imports; and the two places where our code and a user's are found.
  packages=$(/opt/venv/bin/python -c 'import site; print(site.getsitepackages()[0])')
  for package in mpmath networkx numpy pandas pyarrow ray sympy; do
    find "$packages/$package" -type d -name tests -prune -exec rm -rf {} +
  done
  printf '/opt/agent-tuning\n/opt/workflow\n' >"$packages/agent_tuning.pth"
fi
