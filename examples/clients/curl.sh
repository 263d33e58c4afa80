#!/bin/sh
# A chat, whole and streamed. Usage: curl.sh [URL]
set -eu
url="${1:-http://127.0.0.1:8080/v1}"

curl -sS --fail-with-body "$url/chat/completions" -H 'Content-Type: application/json' -d '{
  "messages": [{"role": "user", "content": "Name three colours."}],
  "max_tokens": 40, "temperature": 0
}'
echo
curl -sS --fail-with-body --no-buffer "$url/chat/completions" -H 'Content-Type: application/json' -d '{
  "messages": [{"role": "user", "content": "Name three colours."}],
  "max_tokens": 40, "temperature": 0, "stream": true
}'
