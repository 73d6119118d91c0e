package approval

import "fmt"

// Codes of a Failure.
const (
	CodeFileMissing    = "file-missing"          // no APPROVAL.md and no APPROVALS.md
	CodeUnreadable     = "unreadable"            // it cannot be read, or is too large, or no regular file
	CodeNoBlock        = "no-block"              // no policy block, or one that is never closed
	CodeMultipleBlocks = "multiple-blocks"       // two policy blocks
	CodeYAML           = "yaml-error"            // the block is not exactly one plain YAML document
	CodeSchema         = "schema-invalid"        // a key or a value is not of the policy language
	CodeRouteFloor     = "protected-route-floor" // a built-in path is routed to something laxer than policy.edit
)

// A Failure says why there is no policy. Where is the place in the policy's
// tree ("classes.files.*.autonomy"), Line the line of the file, 0 when unknown.
type Failure struct {
	Code   string `json:"code"`
	Where  string `json:"where,omitzero"`
	Line   int    `json:"line,omitzero"`
	Detail string `json:"detail,omitzero"`
}

func (f *Failure) Error() string {
	s := f.Code
	if f.Line != 0 {
		s += fmt.Sprintf(" at line %d", f.Line)
	}
	if f.Where != "" {
		s += " (" + f.Where + ")"
	}
	if f.Detail != "" {
		s += ": " + f.Detail
	}
	return s
}
