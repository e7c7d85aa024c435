#!/usr/bin/env bash
# Apache RocketMQ itself, as the other side of the interop tests and benchmarks.
#
#   peer.sh get                                fetch the release from Maven Central (needs mvn and Java >= 11);
#                                              4.x has no controller and no container
#   peer.sh namesrv    [-c FILE]               run one of its programs in the foreground
#   peer.sh controller -c FILE
#   peer.sh broker     [-c FILE]
#   peer.sh container  -c FILE
#   peer.sh admin      COMMAND [OPTION ...]    mqadmin
#   peer.sh java       FILE.java [ARG ...]     compile and run one source file against RocketMQ's client
#   peer.sh proxy      -pc FILE                run the proxy in front of the brokers of a name server
#   peer.sh java5      FILE.java [ARG ...]     as java, against the client of the proxy (rocketmq-client-java)
#
# Environment: RMQ_VERSION (5.5.0), PEER_HOME (where the jars, logs and Java's "user home" go),
# PEER_HEAP (heap of the program started, e.g. 400m).
set -euo pipefail

release=${RMQ_VERSION:-5.5.0}
base=${PEER_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/rocketmq-peer}
jars=$base/lib-$release
java_home_dir=${PEER_USER_HOME:-$base/rocketmq}

fail() { echo "peer.sh: $*" >&2; exit 2; }

proxy_client=5.2.0 # the version of rocketmq-client-java

fetch() { # the servers and mqadmin, or what the argument names: proxy, client-java
  local artifacts=("namesrv:$release" "broker:$release" "tools:$release")
  case $release in 4.*) ;; *) artifacts+=("controller:$release" "container:$release") ;; esac
  case ${1:-} in
    proxy) jars=$base/lib-proxy-$release artifacts=("proxy:$release") ;;
    client-java) jars=$base/lib-client-java-$proxy_client artifacts=("client-java:$proxy_client") ;;
  esac
  if [ -d "$jars" ]; then return; fi
  command -v mvn >/dev/null || fail "mvn (Apache Maven) is needed to fetch RocketMQ"
  mkdir -p "$base"
  # Several programs start at once: one fetches, the others wait for it. The folder appears when it is whole.
  exec {lock}>"$base/fetch.lock"
  flock "$lock"
  if [ -d "$jars" ]; then
    exec {lock}>&-
    return
  fi
  local project artifact
  project=$(mktemp -d "$base/fetch.XXXXXX")
  {
    printf '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
    printf '<groupId>interop</groupId><artifactId>interop</artifactId><version>1</version><dependencies>'
    for artifact in "${artifacts[@]}"; do
      printf '<dependency><groupId>org.apache.rocketmq</groupId>'
      printf '<artifactId>rocketmq-%s</artifactId><version>%s</version></dependency>' "${artifact%:*}" "${artifact#*:}"
    done
    printf '</dependencies></project>\n'
  } >"$project/pom.xml"
  mvn --quiet --batch-mode --file "$project/pom.xml" dependency:copy-dependencies -DoutputDirectory="$project/jars"
  mv "$project/jars" "$jars"
  rm -r "$project"
  exec {lock}>&-
}

launch() { # default heap, then what java is to run
  local heap=${PEER_HEAP:-$1}
  shift
  fetch "$libraries"
  mkdir -p "$java_home_dir/conf"
  local file
  for file in logback_broker logback_namesrv logback_tools rmq.proxy.logback; do # 4.9 does not start without them
    echo '<configuration/>' >"$java_home_dir/conf/$file.xml"
  done
  # RocketMQ uses unsafe memory and direct buffers of the JDK; Java 17 opens these packages on request only.
  local open=() package
  for package in java.base/java.nio java.base/java.lang java.base/java.util java.base/sun.nio.ch; do
    open+=("--add-opens=$package=ALL-UNNAMED")
  done
  open+=(--add-exports=java.base/sun.nio.ch=ALL-UNNAMED --add-exports=java.base/jdk.internal.ref=ALL-UNNAMED)
  exec java "-Xms$heap" "-Xmx$heap" -XX:+UseG1GC -XX:MaxDirectMemorySize=2g "${open[@]}" \
    "-Drocketmq.home.dir=$java_home_dir" "-Drocketmq.client.logRoot=$base/logs" "-Duser.home=$java_home_dir" \
    -cp "$jars/*" "$@"
}

[ $# -gt 0 ] || fail "say what to run: get, namesrv, controller, broker, container, admin, java, proxy, java5"
verb=$1 libraries=''
shift
case $verb in
  get) fetch ;;
  namesrv) launch 256m org.apache.rocketmq.namesrv.NamesrvStartup "$@" ;;
  controller) launch 512m org.apache.rocketmq.controller.ControllerStartup "$@" ;;
  broker) launch 1500m org.apache.rocketmq.broker.BrokerStartup "$@" ;;
  container)
    fetch
    [ -n "$(compgen -G "$jars/rocketmq-container-*.jar")" ] || fail "delete $jars: it has no broker container yet"
    launch 2g org.apache.rocketmq.container.BrokerContainerStartup "$@"
    ;;
  admin) launch 256m org.apache.rocketmq.tools.command.MQAdminStartup "$@" ;;
  java) launch 1g "$@" ;;
  proxy) libraries=proxy && launch 512m org.apache.rocketmq.proxy.ProxyStartup "$@" ;;
  java5) libraries=client-java && launch 512m "$@" ;;
  *) fail "unknown verb: $verb" ;;
esac
