package broker

// A Step is a named moment of an apply. A test can stop a broker, or kill it, at each.
type Step string

// Steps in the order in which an apply passes them. StepMoved comes after every single move.
const (
	StepPlanned        Step = "planned"
	StepRegistered     Step = "registered"
	StepAuthorised     Step = "authorised"
	StepStarted        Step = "started"
	StepLocked         Step = "locked"
	StepRevalidated    Step = "revalidated"
	StepStaging        Step = "staging"
	StepStaged         Step = "staged"
	StepJournal        Step = "journal"
	StepMoved          Step = "moved"
	StepSynced         Step = "synced"
	StepReadBack       Step = "read-back"
	StepOutcome        Step = "outcome"
	StepCleared        Step = "cleared"
	StepJournalRemoved Step = "journal-removed"
	StepReleased       Step = "released"
)

// Steps returns every step, in order.
func Steps() []Step {
	return []Step{
		StepPlanned, StepRegistered, StepAuthorised, StepStarted, StepLocked, StepRevalidated, StepStaging,
		StepStaged, StepJournal, StepMoved, StepSynced, StepReadBack, StepOutcome, StepCleared,
		StepJournalRemoved, StepReleased,
	}
}
