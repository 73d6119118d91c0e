package daemon

import (
	"errors"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"gloved.dev/internal/ident"
	"gloved.dev/internal/safefile"
	"gloved.dev/internal/strictjson"
	"gloved.dev/runtime/monitor"
)

// maxConfigBytes bounds the configuration file.
const maxConfigBytes = 1 << 20

// configFile is the strict JSON form of Options.
type configFile struct {
	SchemaVersion       int               `json:"schema_version"`
	PersistentService   bool              `json:"persistent_service"`
	RuntimeDirectory    string            `json:"runtime_directory"`
	AuditKey            string            `json:"audit_key"`
	ReceiptJournal      string            `json:"receipt_journal"`
	SessionPolicy       string            `json:"session_policy,omitempty"`
	SessionStore        string            `json:"session_store,omitempty"`
	MaterializationRoot string            `json:"materialization_root,omitempty"`
	LibraryBundleRoot   string            `json:"library_bundle_root,omitempty"`
	PathExposurePolicy  string            `json:"path_exposure_policy,omitempty"`
	PathExposureJournal string            `json:"path_exposure_journal,omitempty"`
	ApplyTrustPolicy    string            `json:"apply_trust_policy,omitempty"`
	ApplyJournal        string            `json:"apply_journal,omitempty"`
	SessionUIDs         *monitor.UIDRange `json:"session_uids,omitempty"`
	RotateAt            *int              `json:"rotate_at,omitempty"`
	AppleContainer      *map[string]any   `json:"apple_container,omitempty"`
	RemoteBackend       *map[string]any   `json:"remote_backend,omitempty"`
}

// loadConfig reads a configuration file. A file that cannot be trusted or read is a
// failure; one that says something wrong is a usage error.
func loadConfig(path string) (Options, error) {
	data, _, err := safefile.ReadOwner(path, maxConfigBytes)
	if err != nil {
		return Options{}, &startError{code: "config_unreadable", err: err}
	}
	var file configFile
	if err := strictjson.Decode(data, &file, strictjson.Limits{MaxBytes: maxConfigBytes}); err != nil {
		return Options{}, configFault(path, err)
	}
	if file.SchemaVersion != 1 {
		return Options{}, usage(`write "schema_version": 1`, "%s: /schema_version must be 1, got %d", path, file.SchemaVersion)
	}
	options := Options{
		RuntimeDir: file.RuntimeDirectory, AuditKey: file.AuditKey, Journal: file.ReceiptJournal,
		SessionPolicy: file.SessionPolicy, SessionStore: file.SessionStore,
		MaterializationRoot: file.MaterializationRoot, LibraryBundleRoot: file.LibraryBundleRoot,
		PathExposurePolicy: file.PathExposurePolicy, PathExposureJournal: file.PathExposureJournal,
		ApplyTrustPolicy: file.ApplyTrustPolicy, ApplyJournal: file.ApplyJournal,
		RotateAt:      DefaultRotateAt,
		RemoteBackend: file.RemoteBackend != nil, AppleContainer: file.AppleContainer != nil,
	}
	if file.SessionUIDs != nil {
		if err := checkUIDs(path+": /session_uids", *file.SessionUIDs); err != nil {
			return Options{}, err
		}
		options.SessionUIDs = *file.SessionUIDs
	}
	if file.RotateAt != nil {
		if err := checkRotateAt(path+": /rotate_at", *file.RotateAt, strconv.Itoa(*file.RotateAt)); err != nil {
			return Options{}, err
		}
		options.RotateAt = *file.RotateAt
	}
	spell := speller(path)
	var members map[string]jsontext.Value
	if err := json.Unmarshal(data, &members); err != nil {
		return Options{}, configFault(path, err)
	}
	for _, f := range flags {
		value := *f.value(&options)
		// An empty member asks for a component as much as any other value does.
		if given := members[spell(f.name)] != nil; given && !ident.AbsPath(value) {
			return Options{}, usage("write the whole path, from / on", "%s: /%s is not an absolute, normal path", path, spell(f.name))
		}
	}
	return options, nil
}

func configFault(path string, err error) error {
	var fault *strictjson.Error
	if !errors.As(err, &fault) {
		return usage("", "%s: %v", path, err)
	}
	next := ""
	switch fault.Code {
	case strictjson.CodeUnknownMember:
		next = "remove the member, or correct its spelling (names are case-sensitive)"
	case strictjson.CodeDuplicateName:
		next = "keep one of the two"
	case strictjson.CodeMissing:
		next = "add the member"
		if strings.Count(fault.Pointer, "/") == 1 {
			next += "; schema_version, persistent_service, runtime_directory, audit_key and receipt_journal are required"
		}
	}
	return usage(next, "%s: %v", path, fault)
}

// startError is a failure to start that is not the command line's fault.
type startError struct {
	code string
	err  error
	next string
}

func (e *startError) Error() string { return e.err.Error() }
func (e *startError) Unwrap() error { return e.err }
