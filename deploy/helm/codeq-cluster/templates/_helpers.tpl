{{- define "codeq-cluster.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- /* 52: a pod's name adds its ordinal, a revision's label eleven more, of 63. */ -}}
{{- define "codeq-cluster.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains (include "codeq-cluster.name" .) .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "codeq-cluster.name" .) | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "codeq-cluster.selector" -}}
app.kubernetes.io/name: {{ include "codeq-cluster.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "codeq-cluster.labels" -}}
{{ include "codeq-cluster.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "codeq-cluster.headless" -}}
{{ include "codeq-cluster.fullname" . }}-nodes
{{- end }}

{{- define "codeq-cluster.secretName" -}}
{{ default (include "codeq-cluster.fullname" .) .Values.secret.existing }}
{{- end }}

{{- define "codeq-cluster.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "codeq-cluster.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{ default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "codeq-cluster.scheme" -}}
{{ ternary "https" "http" .Values.tls.enabled }}
{{- end }}

{{- /* Where the files of results are kept: none or s3. */ -}}
{{- define "codeq-cluster.artifacts" -}}
{{- get .Values.config "artifacts.provider" | default (dig "artifacts" "provider" "none" .Values.config) }}
{{- end }}

{{- /* How many nodes the release has in the cluster; empty before the first install. */ -}}
{{- define "codeq-cluster.deployed" -}}
{{- with lookup "apps/v1" "StatefulSet" .Release.Namespace (include "codeq-cluster.fullname" .) -}}
{{ .spec.replicas }}
{{- end }}
{{- end }}

{{- /* The nodes' configuration file; the schema keeps what the chart sets out of `config`. */ -}}
{{- define "codeq-cluster.config" -}}
{{- $name := include "codeq-cluster.fullname" . }}
{{- $domain := printf "%s.%s.svc.%s" (include "codeq-cluster.headless" .) .Release.Namespace .Values.clusterDomain }}
{{- $peers := dict }}
{{- $http := dict }}
{{- range $ordinal := until (int .Values.replicas) }}
{{- $id := printf "%s-%d" $name $ordinal }}
{{- $_ := set $peers $id (printf "%s.%s:18080" $id $domain) }}
{{- $_ := set $http $id (printf "%s://%s.%s:8080" (include "codeq-cluster.scheme" $) $id $domain) }}
{{- end }}
{{- $raft := dict "peers" $peers "peerHTTPAddrs" $http }}
{{- if .Values.linkTls.enabled }}
{{- $link := "/run/codeq/link-tls/" }}
{{- $_ := set $raft "tls" (dict "certFile" (print $link "tls.crt") "keyFile" (print $link "tls.key") "caFile" (print $link "ca.crt")) }}
{{- end }}
{{- $own := dict "clusterId" (default $name .Values.clusterId) "raft" $raft "persistenceConfig" (dict "numShards" .Values.shards) }}
{{- if .Values.tls.enabled }}
{{- $_ := set $own "tls" (dict "certFile" "/run/codeq/tls/tls.crt" "keyFile" "/run/codeq/tls/tls.key") }}
{{- end }}
{{- mustMergeOverwrite (deepCopy .Values.config) $own | toYaml }}
{{- end }}
