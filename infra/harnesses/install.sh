#!/bin/sh
# Installs the npm harnesses, pinned, one folder each: infra/harnesses/install.sh [FOLDER [NAME...]]
# FOLDER is .harnesses below the checkout unless given; NAME is one of the spec names, all unless given.
# The versions depend on the Node there is: npm on Node 20 would silently take older ones, so both are named.
set -eu

here=$(cd "$(dirname "$0")/../.." && pwd)
folder=${1:-"$here/.harnesses"}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- claude_code codex qwen_code opencode

command -v npm >/dev/null || { echo "npm is missing; install Node 20 or 22 (https://nodejs.org)" >&2; exit 2; }
major=$(node --version | sed 's/^v\([0-9]*\).*/\1/')
[ "$major" -ge 20 ] || { echo "Node $major is too old; install Node 20 or 22" >&2; exit 2; }

package_of() {
  case $1 in
    claude_code) if [ "$major" -ge 22 ]; then v=2.1.332; else v=2.1.197; fi; echo "@anthropic-ai/claude-code@$v" ;;
    codex) echo "@openai/codex@0.171.0" ;;
    qwen_code) if [ "$major" -ge 22 ]; then v=0.24.4; else v=0.15.10; fi; echo "@qwen-code/qwen-code@$v" ;;
    opencode) echo "opencode-ai@1.18.33" ;;
    *) echo "no harness named $1; there are claude_code, codex, qwen_code, opencode" >&2; return 1 ;;
  esac
}

umask 022 # a box's user must be able to read what is mounted for it
for name in "$@"; do
  package=$(package_of "$name")
  mkdir -p "$folder/$name"
  [ -f "$folder/$name/package.json" ] || echo '{"private": true}' >"$folder/$name/package.json"
  echo "$name: $package"
  npm install --prefix "$folder/$name" --no-audit --no-fund --no-update-notifier --save-exact "$package"
  chmod -R go+rX "$folder/$name"
done
