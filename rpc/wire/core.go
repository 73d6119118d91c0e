package wire

// ProtocolVersion is the one version of the protocol there is.
const ProtocolVersion = 1

// Names of the methods every server has, and of the one a relay uses.
const (
	MethodInitialize   = "initialize"
	MethodCapabilities = "capabilities"
	MethodHealth       = "health"
	MethodDiscover     = "rpc.discover"
	// MethodRelay opens a connection on behalf of a controller: `gloved --stdio`
	// beside a running instance sends it, with the bootstrap secret, before it
	// relays bytes. From then on the connection is a controller's: initialize must
	// not carry the secret and owner-local methods do not exist. It is between two
	// processes of one owner and not listed anywhere.
	MethodRelay = "relay"
)

// Implementation names a program at one end of the connection.
type Implementation struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// InitializeParams opens a connection. BootstrapSecret is required on a socket
// and must be absent over stdio.
type InitializeParams struct {
	ProtocolVersions []int          `json:"protocol_versions" jsonschema:"versions the client speaks"`
	Client           Implementation `json:"client"`
	BootstrapSecret  string         `json:"bootstrap_secret,omitempty" jsonschema:"64 lowercase hexadecimal digits; sockets only"`
}

// InitializeResult accepts a connection.
type InitializeResult struct {
	ProtocolVersion int            `json:"protocol_version"`
	Server          Implementation `json:"server"`
	Capabilities    Capabilities   `json:"capabilities"`
}

// RelayParams is what MethodRelay takes.
type RelayParams struct {
	BootstrapSecret string `json:"bootstrap_secret"`
}

// Empty is the type of parameters and results that say nothing.
type Empty struct{}

// ReceiptAudit says how receipts are authenticated. It is absent where no
// receipt producer was constructed.
type ReceiptAudit struct {
	EnvelopeSchemaVersion int    `json:"envelope_schema_version"`
	Algorithm             string `json:"algorithm" jsonschema:"hmac_sha256"`
	KeyID                 string `json:"key_id"`
}

// ResourceEnforcement names the mechanism behind each limit of a backend:
// cgroup_v2, cgroup_v1, watchdog, filesystem_quota, byte_counter or unavailable.
type ResourceEnforcement struct {
	CPUTime              string `json:"cpu_time"`
	Memory               string `json:"memory"`
	PIDs                 string `json:"pids"`
	WallTime             string `json:"wall_time"`
	Disk                 string `json:"disk"`
	TerminalOutput       string `json:"terminal_output"`
	ReceiptSchemaVersion int    `json:"receipt_schema_version"`
}

// BackendCapability describes one way to run sessions.
type BackendCapability struct {
	Backend              string              `json:"backend"`
	LifecycleOperational bool                `json:"lifecycle_operational"`
	ResourceEnforcement  ResourceEnforcement `json:"resource_enforcement"`
}

// Capabilities says what this server was built with. A version is 0 where
// nothing that enforces it was constructed.
type Capabilities struct {
	Methods                                   []string            `json:"methods"`
	ReceiptAudit                              *ReceiptAudit       `json:"receipt_audit,omitempty"`
	AgentRuntimeAdapterSchemaVersion          int                 `json:"agent_runtime_adapter_schema_version"`
	ManagedRuntimeIDs                         []string            `json:"managed_runtime_ids"`
	PathExposureAdminSchemaVersion            int                 `json:"path_exposure_admin_schema_version"`
	PathExposureCatalogSchemaVersion          int                 `json:"path_exposure_catalog_schema_version"`
	RetainedWriteSchemaVersion                int                 `json:"retained_write_schema_version"`
	ChangeManifestSchemaVersion               int                 `json:"change_manifest_schema_version"`
	ChangeApplyAuthorizationSchemaVersion     int                 `json:"change_apply_authorization_schema_version"`
	RefinementEvaluationProtocolSchemaVersion int                 `json:"refinement_evaluation_protocol_schema_version"`
	GuestChannelSchemaVersion                 int                 `json:"guest_channel_schema_version"`
	Backends                                  []BackendCapability `json:"backends"`
}

// States of Health and ComponentHealth.
const (
	StatusReady    = "ready"
	StatusDegraded = "degraded"
)

// Health says whether the server can do its work. Status is degraded when any
// component is.
type Health struct {
	SchemaVersion int               `json:"schema_version"`
	Status        string            `json:"status" jsonschema:"ready or degraded"`
	Components    []ComponentHealth `json:"components"`
}

// ComponentHealth is one component's part of Health. Code is a stable lowercase
// code when the component is not ready.
type ComponentHealth struct {
	Name   string `json:"name"`
	Status string `json:"status" jsonschema:"ready or degraded"`
	Code   string `json:"code,omitempty"`
}
