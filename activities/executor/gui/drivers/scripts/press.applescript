-- Arguments: key code or empty, character or empty, modifiers separated by commas; then process id and title of the
-- window that must be in front, or empty. Answers "elsewhere", and presses nothing, where another one is.
on run argv
	set theCode to item 1 of argv
	set theCharacter to item 2 of argv
	set theNames to item 3 of argv
	set thePid to item 4 of argv
	set theTitle to item 5 of argv
	set held to {}
	tell application "System Events"
		if thePid is not "" then
			set theProcess to first application process whose frontmost is true
			if (unix id of theProcess) is not (thePid as integer) then return "elsewhere"
			if (name of (first window of theProcess whose value of attribute "AXMain" is true)) is not theTitle then return "elsewhere"
		end if
		if theNames contains "command" then set end of held to command down
		if theNames contains "control" then set end of held to control down
		if theNames contains "option" then set end of held to option down
		if theNames contains "shift" then set end of held to shift down
		if theCode is not "" then
			key code (theCode as integer) using held
		else
			keystroke theCharacter using held
		end if
	end tell
end run
