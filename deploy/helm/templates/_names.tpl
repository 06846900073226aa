{{/* Objects are called as the release is; deploy/kubernetes calls them runguard. */}}
{{- define "runguard.pods" -}}
app.kubernetes.io/name: runguard
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "runguard.about" -}}
name: {{ .Release.Name }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "runguard.pods" . | nindent 2 }}
  app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "runguard.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "runguard.locked" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
