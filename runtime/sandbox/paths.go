package sandbox

// shmTarget is the one mount target allowed below /dev.
const shmTarget = "/dev/shm"

// DefaultSystemPaths returns the host paths every session sees read-only: the
// system's programs and libraries, and of /etc only what describes the system to
// them. Nothing here may hold a secret or a person's configuration; /etc/ssl is
// taken apart because its private directory holds keys.
func DefaultSystemPaths() []string {
	return []string{
		"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
		// The loader.
		"/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload",
		"/etc/ld-musl-x86_64.path", "/etc/ld-musl-aarch64.path",
		// Names of things.
		"/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf", "/etc/networks",
		"/etc/protocols", "/etc/services", "/etc/rpc", "/etc/ethertypes",
		"/etc/mime.types", "/etc/magic", "/etc/magic.mime", "/etc/xattr.conf",
		"/etc/shells", "/etc/os-release", "/etc/debian_version", "/etc/alpine-release",
		"/etc/redhat-release", "/etc/lsb-release",
		// Certificates.
		"/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/ssl/cert.pem",
		"/etc/ca-certificates", "/etc/ca-certificates.conf",
		"/etc/pki/tls/certs", "/etc/pki/tls/cert.pem", "/etc/pki/tls/openssl.cnf",
		"/etc/pki/ca-trust", "/etc/crypto-policies",
		// Programs' own data.
		"/etc/alternatives", "/etc/terminfo", "/etc/localtime", "/etc/timezone",
		"/etc/locale.alias", "/etc/fonts", "/etc/inputrc",
	}
}

// maskedProc are the entries of /proc that tell about, or reach, the host: what
// container runtimes agree to hide (OCI runtime-spec, linux.maskedPaths), and the
// tables of kernel addresses.
var maskedProc = []string{
	"acpi", "asound", "interrupts", "kallsyms", "kcore", "key-users", "keys", "kmsg", "kpagecount",
	"kpageflags", "kpagecgroup", "latency_stats", "modules", "sched_debug", "scsi", "slabinfo",
	"softirqs", "sysrq-trigger", "timer_list", "timer_stats", "vmallocinfo", "zoneinfo",
}

// readOnlyProc are the entries of /proc that programs read but nothing inside may
// write. (Whoever may write to pressure can have the kernel keep as many triggers as
// there are descriptors, in lists of the whole host's.)
var readOnlyProc = []string{"bus", "fs", "irq", "pressure", "sys"}
