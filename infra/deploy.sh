#!/usr/bin/env bash
# Work pools (made when missing), deployments and alarms on the server that PREFECT_API_URL names. Run it again at will.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${PREFECT_API_URL:?name the server, such as http://127.0.0.1:4200/api}"
: "${LONGBREATH_ALARM_URL:?name the address that alarms are to be posted to}"
for pool in longbreath-cpu longbreath-gpu; do
    prefect work-pool inspect "$pool" >/dev/null 2>&1 || prefect work-pool create "$pool" --type process
done
prefect --no-prompt deploy --all --prefect-file infra/prefect.yaml
python -m flows.automations
