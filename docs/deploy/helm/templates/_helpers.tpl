{{- define "delayboard.labels" -}}
app.kubernetes.io/name: delayboard
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "delayboard.selector" -}}
app.kubernetes.io/name: delayboard
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- /* What the pods of all components have in common. */ -}}
{{- define "delayboard.pod" -}}
automountServiceAccountToken: false
# A Service named delayboard would set DELAYBOARD_PORT, which is no setting.
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "delayboard.container" -}}
image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
envFrom:
  - secretRef: {name: {{ required "Set secretName." .Values.secretName }}}
volumeMounts:
  - {name: data, mountPath: /data}
  - {name: tmp, mountPath: /tmp}
{{- end }}

{{- define "delayboard.env" -}}
# Each has to be there: a pod would make keys of its own, which go with it.
{{- range list "DATABASE_URL" "SECRET_KEY" "CREDENTIAL_KEYS" }}
- name: {{ . }}
  valueFrom:
    secretKeyRef: {name: {{ $.Values.secretName }}, key: {{ . }}}
{{- end }}
{{- $host := required "Set host." .Values.host }}
{{- $own := dict "ALLOWED_HOSTS" $host }}
{{- $tls := and .Values.ingress.enabled .Values.ingress.tlsSecretName }}
{{- $_ := set $own "CSRF_TRUSTED_ORIGINS" (printf "%s://%s" (ternary "https" "http" (not (not $tls))) $host) }}
{{- if $tls }}
{{- if not .Values.settings.FORWARDED_ALLOW_IPS }}
{{- fail "Set settings.FORWARDED_ALLOW_IPS to the addresses of the ingress controller: else all people have its address, and one locks out all by wrong passwords." }}
{{- end }}
{{- $_ := set $own "BEHIND_TLS" "1" }}
{{- end }}
{{- /* A name twice would be refused: your settings win. */ -}}
{{- range $name, $value := merge (dict) .Values.settings $own }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
