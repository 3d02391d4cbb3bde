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

{{- define "operator.stopKeySecret" -}}
{{- default (printf "%s-stop-key" (include "operator.fullname" .)) (.Values.stopKey).existingSecret -}}
{{- end -}}

{{- define "operator.uninstallGuard" -}}
{{- printf "%s-uninstall" (include "operator.fullname" .) -}}
{{- end -}}

{{- /* What a pod and its container may, of the operator and of its guard. */ -}}
{{- define "operator.podSecurityContext" -}}
runAsNonRoot: true
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "operator.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "operator.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* Where the pods of this chart may run. */ -}}
{{- define "operator.placement" -}}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 0 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}
