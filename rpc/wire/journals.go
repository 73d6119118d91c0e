package wire

// MethodRotateJournals seals journals into archives. It is the owner's.
const MethodRotateJournals = "rotate_journals"

// Names of journals.
const (
	JournalReceipts = "receipts"
	JournalSessions = "sessions"
)

// RotateJournalsParams with DryRun only counts.
type RotateJournalsParams struct {
	DryRun bool `json:"dry_run"`
}

// Reasons why a journal was not rotated, and what failed.
const (
	RotateNothing = "nothing_to_archive" // everything in it is live
	RotateUnpaged = "not_opened"         // no controller has paged the receipts yet
)

// JournalRotation is what became of one journal. Archive names the new archive,
// beside the journal; without one, Reason or Failure says why, or it was a dry
// run. Archived and Kept count sessions or receipts.
type JournalRotation struct {
	Name        string `json:"name" jsonschema:"receipts or sessions"`
	Archive     string `json:"archive,omitempty"`
	Archived    int64  `json:"archived"`
	Kept        int64  `json:"kept"`
	Records     int64  `json:"records"`
	Bytes       int64  `json:"bytes"`
	KeptRecords int64  `json:"kept_records"`
	KeptBytes   int64  `json:"kept_bytes"`
	Reason      string `json:"reason,omitempty" jsonschema:"nothing_to_archive or not_opened"`
	Failure     string `json:"failure,omitempty" jsonschema:"why the old journal stays in use"`
}

// RotateJournalsResult has one member for each journal that this gloved keeps.
type RotateJournalsResult struct {
	Journals []JournalRotation `json:"journals"`
}
