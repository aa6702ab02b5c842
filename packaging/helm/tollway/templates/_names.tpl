{{- define "tollway.name" -}}
{{- printf "%s" .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "tollway.selector" -}}
app.kubernetes.io/name: tollway
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tollway.labels" -}}
{{ include "tollway.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}
