#!/bin/sh
# Builds the dashboard's script and style sheet into dist/ (or the folder given), after checking the
# types. Needs scripts/install-face; whoever only builds Tollway needs neither.
set -eu
cd "$(dirname "$0")"
out=${1:-dist}
tools=../../../target/face/node_modules
node "$tools/typescript/bin/tsc" --project .
NODE_PATH=$tools "$tools/.bin/esbuild" src/main.ts src/app.css --bundle --minify --legal-comments=none \
    --format=esm --target=es2022 --charset=utf8 --log-level=warning \
    --entry-names=app --outdir="$out" \
    "--banner:js=// Generated from dashboard/src by dashboard/build.sh; with uPlot (MIT, Leon Sorokin)." \
    "--banner:css=/* Generated from dashboard/src by dashboard/build.sh; with uPlot's style (MIT). */"
