{{- define "operator.fullname" -}}
{{- default (ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name)) .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "operator.serviceAccountName" -}}
{{- default (ternary (include "operator.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "operator.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "operator.labels" -}}
{{ include "operator.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- /* Node pools as JSON. The schema cannot compare two items of a list. */ -}}
{{- define "operator.nodePools" -}}
{{- $known := dict -}}
{{- range .Values.nodePools -}}
{{- if hasKey $known .name -}}
{{- fail (printf "nodePools: %s is there twice: give each pool a name of its own" .name) -}}
{{- end -}}
{{- $_ := set $known .name true -}}
{{- end -}}
{{- toJson .Values.nodePools -}}
{{- end -}}
